"""What every flavour promises: one suite, which the fixture `flavour` runs for each way to call."""
