"""Pages made to measure what is read of PDFs and of HTML: their words, their labels, and what draws them."""
