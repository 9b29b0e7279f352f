package ports

import "testing"

func TestListenLine_FindsTheListenerOfThePort(t *testing.T) {
	t.Parallel()
	const line = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0"
	if inode, ok := listenLine(line, 8000); !ok || inode != "12345" {
		t.Errorf("%q, %v", inode, ok)
	}
	if _, ok := listenLine(line, 8001); ok {
		t.Error("found the listener of another port")
	}
	const client = "   1: 0100007F:1F40 0100007F:E0A2 01 00000000:00000000 00:00000000 00000000     0        0 777 1 0 20 4 30 10 -1"
	if _, ok := listenLine(client, 8000); ok {
		t.Error("took a connection for a listener")
	}
}

func FuzzListenLine(f *testing.F) {
	f.Add("   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0")
	f.Add("sl local_address rem_address st")
	f.Fuzz(func(t *testing.T, line string) {
		if inode, ok := listenLine(line, 8000); ok && inode == "" {
			t.Error("a listener without an inode")
		}
	})
}
