"""What the runs of the budget study say."""
