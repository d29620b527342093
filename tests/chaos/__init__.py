"""What the product does when everything goes wrong at once. Short here, long with `make chaos`, against the same bars."""
