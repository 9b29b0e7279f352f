package client

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
)

// errNoCertificate is a text that should hold certificates and has none.
var errNoCertificate = errors.New("no certificate is in it: it must hold PEM blocks BEGIN CERTIFICATE")

// errOtherCertificate is a server that shows another certificate than the
// trusted one.
var errOtherCertificate = errors.New("the server shows another certificate than the one of its settings")

// TrustCA trusts the authorities in a PEM text beside those of the system.
func TrustCA(text []byte) (*tls.Config, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without any
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, errNoCertificate
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// TrustOnly trusts a server that shows the first certificate of a PEM text and
// no other, whatever name it was made for and whoever signed it: the way to
// call a supervisor on this machine, whose certificate file can be read.
func TrustOnly(text []byte) (*tls.Config, error) {
	block, _ := pem.Decode(text)
	for rest := text; block != nil && block.Type != "CERTIFICATE"; {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, errNoCertificate
	}
	want := block.Bytes
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the check that follows is stricter
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, want) {
				return errOtherCertificate
			}
			return nil
		},
	}, nil
}
