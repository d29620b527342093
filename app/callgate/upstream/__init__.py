"""The only room that speaks to models: what is asked of them goes out here, and what they answer becomes `ModelEvent`s."""
