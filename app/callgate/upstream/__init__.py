"""What speaks to models: requests go out here, and answers become `ModelEvent`s."""
