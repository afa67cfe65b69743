"""Name of the gRPC service."""

SERVICE = "embershard.ps_server.ParameterServer"
