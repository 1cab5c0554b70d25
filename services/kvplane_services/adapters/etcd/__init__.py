"""The store in etcd v3, for planes of several replicas."""
