"""What the critic explains, and what it could."""
