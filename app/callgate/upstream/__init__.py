"""Model providers: sends requests, and reads answers into `ModelEvent`s."""
