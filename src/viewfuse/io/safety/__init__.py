"""What a file may claim and do: errors become one line, sizes are limited, indices are checked."""
