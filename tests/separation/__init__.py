"""Hosts that are really apart: network namespaces, a proxy between them, and plans of what goes wrong there."""
