package trial

import (
	"net"
	"net/http"
	"strconv"
	"time"
)

// Act is how an agent takes one call. The zero Act answers at once.
type Act struct {
	Take time.Duration // before anything else
	How  How
	// Status is the answer's with Refuse; RetryAfter is sent in whole seconds when it is not zero.
	Status     int
	RetryAfter time.Duration
}

// How names what an agent does when it is done with thinking.
type How int

// The ways.
const (
	Answer How = iota
	Hang       // says nothing until the caller leaves
	Drip       // a status, and then a byte now and then
	Reset      // reads the request and resets the connection
	Refuse     // an HTTP status
)

// Behaviour decides about a call; the call is as it looks when it begins. It is called by many goroutines.
type Behaviour func(Call) Act

// Taking answers every call after d.
func Taking(d time.Duration) Behaviour { return func(Call) Act { return Act{Take: d} } }

// First takes the first n calls of every delivery as a says, and later ones well.
func First(n int, a Act) Behaviour {
	return func(c Call) Act {
		if c.Number <= n {
			return a
		}
		return Act{}
	}
}

const dripEvery = 100 * time.Millisecond

// perform does it and tells whether a whole answer went out to somebody who was still there.
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
		piece := []byte{' '} // the answer's last byte never comes
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

// reset drops the connection so that the other side gets RST and no answer.
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
