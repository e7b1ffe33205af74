"""How an answer is read and graded."""
