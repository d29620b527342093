"""What the operator wrote: its shape (`schema`), and the reading of it (`load`). Imports nothing of ours."""
