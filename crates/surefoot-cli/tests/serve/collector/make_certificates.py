#!/usr/bin/env python3
"""Makes the certificates in this folder: an authority, and what it signed for a collector on this machine and for a client.

    python make_certificates.py

Needs the package cryptography. The authority's key is not kept. They are for tests alone, and valid from 2020 to 2120.
"""

import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FOLDER = pathlib.Path(__file__).parent


def name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificate(subject, key, issuer, issuer_key, extensions):
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject)).issuer_name(name(issuer)).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1)).not_valid_after(datetime.datetime(2120, 1, 1))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    made = builder.sign(issuer_key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def main():
    authority, authority_key = "authority of tests", ec.generate_private_key(ec.SECP256R1())
    is_authority = [(x509.BasicConstraints(ca=True, path_length=0), True)]
    (FOLDER / "authority.pem").write_bytes(certificate(authority, authority_key, authority, authority_key, is_authority))
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    for subject, usage, names in [
        ("collector", ExtendedKeyUsageOID.SERVER_AUTH, hosts),
        ("client", ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName("client")]),
    ]:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([usage]), False),
            (x509.SubjectAlternativeName(names), False),
        ]
        (FOLDER / f"{subject}.pem").write_bytes(certificate(subject, key, authority, authority_key, extensions))
        (FOLDER / f"{subject}.key").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


if __name__ == "__main__":
    main()
