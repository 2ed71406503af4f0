package grpclimit

import (
	"sync/atomic"

	"google.golang.org/grpc"
)

// serverStream charges a stream's messages. One goroutine may send while another
// receives.
type serverStream struct {
	grpc.ServerStream
	server *Server
	call   Call
	names  []string
	over   atomic.Pointer[error] // the refusal of a message, which ends the stream
}

// RecvMsg charges a message that has arrived. If there are no tokens, it drops the message.
func (s *serverStream) RecvMsg(message any) error {
	if over := s.over.Load(); over != nil {
		return *over
	}
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	return s.charge(s.server.RecvCost, message)
}

// SendMsg charges a message before it is sent.
func (s *serverStream) SendMsg(message any) error {
	if over := s.over.Load(); over != nil {
		return *over
	}
	if err := s.charge(s.server.SendCost, message); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(message)
}

// charge ends the stream if the message finds no tokens. If the handler goes on, it gets
// the same error again without another attempt.
func (s *serverStream) charge(cost func(Call, any) int64, message any) (err error) {
	if cost == nil {
		return nil
	}
	n, limits := cost(s.call, message), &s.server.limits
	switch {
	case n <= 0:
		return nil
	case s.server.WaitMessages:
		err = limits.wait(s.Context(), s.names, limits.each(n))
	default:
		_, err = s.server.charge(s.Context(), s.names, limits.each(n))
	}
	if err != nil {
		over := err
		s.over.Store(&over)
	}
	return err
}
