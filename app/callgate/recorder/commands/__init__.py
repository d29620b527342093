"""The commands about recorded runs: `callgate runs`, `callgate usage`."""
