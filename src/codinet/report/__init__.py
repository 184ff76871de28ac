"""Run folders in pictures and words: figures, tables, and the one page that holds them."""
