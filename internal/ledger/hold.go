package ledger

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// hold finds until when the limit is held. As long as it is, a statement asks for nothing, so it is granted nothing and opens
// no window.
func (s *step) hold() {
	if s.head != nil {
		s.until = s.head.hold
	}
	if until := (s.now+999)/1000 + (s.Hold + time.Millisecond - 1).Milliseconds(); s.Hold > 0 && until > s.until {
		s.until, s.longer = until, true
	}
	if s.until*1000 <= s.now {
		s.until = 0
		return
	}
	s.Want, s.Need, s.Least = 0, 0, 0
}

// lengthen writes a longer hold into the head, which lasts as long. It makes one if there is none, because no window is open.
func (s *step) lengthen() {
	if !s.longer {
		return
	}
	if s.head == nil {
		s.head = &head{accounts: map[string]*account{}}
	}
	s.head.hold, s.gone = s.until, max(s.gone, s.until+1000)
}

// tell adds a message to all about a longer hold.
func (s *step) tell(messages []Message) []Message {
	if s.longer {
		w := backend.Window{End: s.until, Gen: s.head.Gen}
		messages = append(messages, Message{Message: backend.Message{Kind: backend.Held, Window: w}})
	}
	return messages
}
