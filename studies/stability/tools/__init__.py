"""Tables and figures from the kept results."""
