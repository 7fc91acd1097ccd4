"""How a test makes a certificate for a server on loopback."""

MAKE_CERTIFICATE = """
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem
    -subj /CN=x.example -addext subjectAltName=DNS:x.example
"""
