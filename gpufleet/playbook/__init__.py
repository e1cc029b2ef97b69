"""YAML playbooks -> one POSIX shell script per job. Pure: nothing here touches a node."""
