"""The services of kvplane: engine directory, leases, session registry, router and gateway."""
