"""Recognise the bearers of JWTs that an OIDC issuer signs."""
