"""Fakes and ways to call that many tests share: gates, flavours, a service whose model waits for a gate."""
