package service

import (
	"time"

	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
)

// oauthIdle is how long a connection to an authorization server is kept: for the requests of one login or renewal, not
// for the next.
const oauthIdle = 2 * time.Second

// OAuth asks agents and authorization servers for tokens, through the guard: their addresses come from strangers'
// documents.
func OAuth(guard *netguard.Guard) (*oauth.Client, error) {
	return oauth.New(oauth.Config{HTTP: guard.Client(netguard.Limits{Idle: oauthIdle, IdlePerHost: 1}, 0)})
}
