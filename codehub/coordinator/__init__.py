"""The one leader: it observes, decides through the domain, and acts."""
