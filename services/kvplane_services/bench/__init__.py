"""Measures a plane under a load of simulated engines: `kvplane bench`."""
