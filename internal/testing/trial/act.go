package trial

import (
	"net"
	"net/http"
	"strconv"
	"time"
)

// Act describes how an agent handles one call. The zero Act answers at once.
type Act struct {
	Take time.Duration // delay before anything else
	How  How
	// Status is the HTTP status for Refuse. RetryAfter is sent in whole seconds if it is not zero.
	Status     int
	RetryAfter time.Duration
}

// How is an agent's reaction to a call, after the delay Take.
type How int

// The reactions.
const (
	Answer How = iota
	Hang       // sends nothing until the caller leaves
	Drip       // sends a status, and then single bytes slowly
	Reset      // reads the request and resets the connection
	Refuse     // answers with an HTTP status
)

// Behaviour decides how to handle a call, which is passed in its initial state. It is called by many goroutines.
type Behaviour func(Call) Act

// Taking returns a Behaviour that answers every call after d.
func Taking(d time.Duration) Behaviour { return func(Call) Act { return Act{Take: d} } }

// First returns a Behaviour that handles the first n calls of every delivery with a, and answers later ones at once.
func First(n int, a Act) Behaviour {
	return func(c Call) Act {
		if c.Number <= n {
			return a
		}
		return Act{}
	}
}

const dripEvery = 100 * time.Millisecond

// perform handles a call. It reports whether the whole answer was sent and the caller was still connected.
func (a Act) perform(w http.ResponseWriter, r *http.Request, answer []byte) (answered bool) {
	gone := r.Context().Done()
	if a.Take > 0 {
		timer := time.NewTimer(a.Take)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-gone:
			return false
		}
	}
	switch a.How {
	case Hang:
		<-gone
		return false
	case Drip:
		drip(w, gone, answer)
		return false
	case Reset:
		reset(w)
		return false
	case Refuse:
		if s := int(a.RetryAfter / time.Second); s > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(s))
		}
		http.Error(w, http.StatusText(a.Status), a.Status)
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, err := w.Write(answer)
	return err == nil && r.Context().Err() == nil
}

func drip(w http.ResponseWriter, gone <-chan struct{}, answer []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	ticker := time.NewTicker(dripEvery)
	defer ticker.Stop()
	for i := 0; ; i++ {
		piece := []byte{' '} // the answer's last byte is never sent
		if i < len(answer)-1 {
			piece = answer[i : i+1]
		}
		if _, err := w.Write(piece); err != nil || flush.Flush() != nil {
			return
		}
		select {
		case <-gone:
			return
		case <-ticker.C:
		}
	}
}

// reset closes the connection so that the peer receives RST and no answer.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
