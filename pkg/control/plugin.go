package control

import (
	"context"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// Version is the version of the control protocol, told by Hello. It rises when
// an older supervisor could misread a newer child.
const Version = 1

// The handshake tells a child that a supervisor started it. It protects against
// a person starting the binary by hand, not against an attacker: that is the
// work of the 0700 run directory, the TLS keys in it and the launch token.
const (
	cookieKey   = "SVC_CONTROL_COOKIE"
	cookieValue = "formation-runtime-under-supervisor"
	pluginName  = "formation"
)

func handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{ProtocolVersion: Version, MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}
}

// formationPlugin is the one plugin of the set. The child's has a server, the
// supervisor's has none. The broker stays unused: it does not survive a
// reattach.
type formationPlugin struct {
	goplugin.NetRPCUnsupportedPlugin
	server *server
}

func plugins(s *server) goplugin.PluginSet {
	return goplugin.PluginSet{pluginName: &formationPlugin{server: s}}
}

// GRPCServer implements goplugin.GRPCPlugin.
func (p *formationPlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	controlv1.RegisterFormationServiceServer(s, p.server)
	return nil
}

// GRPCClient implements goplugin.GRPCPlugin.
func (p *formationPlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn), nil
}
