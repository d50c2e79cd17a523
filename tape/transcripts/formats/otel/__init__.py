"""OpenTelemetry: spans that carry what models were given and said."""
