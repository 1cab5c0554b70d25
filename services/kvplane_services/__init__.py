"""The services of kvplane: engine directory, lease manager, session registry, router and gateway."""
