"""Stand-in for the docker command: containers are process groups, images are lists of packages."""
