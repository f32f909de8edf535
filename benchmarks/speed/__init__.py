"""Time and memory beside a reference that does the same work in the same run; a roofline of a step."""
