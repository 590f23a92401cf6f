package queue

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// writeCertificate writes a certificate for 127.0.0.1, which signs itself, and its key into files.
func writeCertificate(t testing.TB, dir, name string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	heraldtest.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	heraldtest.Must(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	heraldtest.Must(t, err)
	certificate, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	heraldtest.Must(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	heraldtest.Must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600))
	return certificate, key
}

// TestClientCertificate: a client trusts the authority of sslrootcert, and presents the certificate of sslcert, also
// one that replaced the first. Without these parameters, the error names the cause.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serverCert, serverKey := writeCertificate(t, dir, "server")
	clientCert, clientKey := writeCertificate(t, dir, "client")
	pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
	heraldtest.Must(t, err)
	seen := make(chan []byte, 16) // the certificate of each client
	address := heraldtest.Listen(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert})
		if s.Handshake() == nil {
			seen <- s.ConnectionState().PeerCertificates[0].Raw
		}
		_ = s.Close()
	})
	ping := func(parameters ...string) error {
		q, err := Open(Config{URL: secret.New("rediss://" + address + "?" + strings.Join(parameters, "&")), DialOnce: true})
		heraldtest.Must(t, err)
		defer q.Close()
		return q.Ping(heraldtest.Within(t, 10*time.Second))
	}
	heraldtest.Fails(t, "without the authority", ping(), "unknown authority")
	trust := "sslrootcert=" + serverCert
	heraldtest.Fails(t, "without a certificate", ping(trust))
	heraldtest.Equal(t, "clients that were accepted", len(seen), 0)

	q, err := Open(Config{URL: secret.New("rediss://" + address + "?" + trust + "&sslcert=" + clientCert + "&sslkey=" + clientKey),
		DialOnce: true})
	heraldtest.Must(t, err)
	defer q.Close()
	for range 2 {
		file, err := os.ReadFile(clientCert)
		heraldtest.Must(t, err)
		block, _ := pem.Decode(file)
		_ = q.Ping(heraldtest.Within(t, 10*time.Second)) // the server closes the connection
		heraldtest.Equal(t, "the client's certificate", heraldtest.Receive(t, "a client", seen), block.Bytes)
		for len(seen) > 0 { // the driver's further tries
			<-seen
		}
		writeCertificate(t, dir, "client")
	}
}
