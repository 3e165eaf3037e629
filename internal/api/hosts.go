package api

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	// OnNode begins the address of an agent on another host: node:NAME. Whoever gave the
	// address has the way there: its clients say node:NAME@ADDRESS.
	OnNode = "node:"
	// UIDHeader and GIDHeader are how a host says for which of its users it asks. They
	// count on connections of hosts only, and as far as the host's role goes.
	UIDHeader = "Gangway-Uid"
	GIDHeader = "Gangway-Gid" // see UIDHeader
	// Away and Left are kinds of errors that a host gives in the controller's place: it could
	// not be reached, and so has heard nothing; or it went away with the request.
	Away = "CONTROLLER_AWAY"
	Left = "CONTROLLER_LEFT" // see Away
	// Denied is the kind of a refusal that is final: who asks may not.
	Denied = "ACCESS_DENIED"
)

// way is an address to dial, and what begins the paths of requests there.
func way(address string) (dial, prefix string) {
	rest, ok := strings.CutPrefix(address, OnNode)
	if !ok {
		return address, ""
	}
	node, dial, _ := strings.Cut(rest, "@")
	return dial, "/v1/nodes/" + node
}

// located gives the agents of a step the way by which this client has heard of them.
func (c *Client) located(s *Step) {
	for i, address := range s.Agents {
		if strings.HasPrefix(address, OnNode) {
			s.Agents[i] = address + "@" + c.address
		}
	}
}

func (c *Client) locatedAll(steps []Step) {
	for i := range steps {
		c.located(&steps[i])
	}
}

// send makes a request, for as long as the Client is patient with a controller of which
// a host says that it is away.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	for deadline := time.Now().Add(c.patience); ; time.Sleep(dialPause) {
		resp, err := c.http.Do(req)
		if err != nil {
			return nil, c.orContext(req.Context(), err)
		}
		if resp.StatusCode != http.StatusServiceUnavailable {
			return resp, nil
		}
		err = refusal(resp)
		_ = resp.Body.Close() // it was read
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Kind != Away && e.Kind != Left {
			return nil, err
		}
		if e.Kind == Left || time.Now().After(deadline) || req.Context().Err() != nil {
			return nil, &fault.Error{What: &Unreachable{Address: c.address, Err: errors.New(e.What)}, Cause: e.Cause, Hint: e.Hint, Code: fault.CodeUnreachable}
		}
		if req.GetBody != nil { // nobody has heard it yet
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}
