"""What clients get over HTTP while they ask for more than a service can do."""
