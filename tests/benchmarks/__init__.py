"""The benchmarks: that each can be run, and what is made of figures. No test looks at a time."""
