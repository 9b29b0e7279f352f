package httpapi

import (
	"math"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
)

type statusDocument struct {
	Formation  formationInfo `json:"formation"`
	Agents     countActive   `json:"agents"`
	MCPServers countActive   `json:"mcp_servers"`
	Stats      statusStats   `json:"stats"`
}

type formationInfo struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Version     string `json:"version"`
}

type countActive struct {
	Count  int `json:"count"`
	Active int `json:"active"`
}

type statusStats struct {
	Running  runningStats `json:"running"`
	Memory   memoryStats  `json:"memory"`
	Requests requestStats `json:"requests"`
	// BufferSize is how many messages of a session are recalled in full.
	BufferSize int `json:"buffer_size"`
	// CPUPercent is the process's share of one core since it started.
	CPUPercent float64 `json:"cpu_percent"`
}

type runningStats struct {
	Seconds int64    `json:"seconds"`
	Since   jsonTime `json:"since"`
}

type memoryStats struct {
	WorkingMB float64 `json:"working_memory_mb"` // live heap
	UsageMB   float64 `json:"memory_usage_mb"`   // all memory the Go runtime holds
}

// requestStats counts turns since the process started.
type requestStats struct {
	Total  int64 `json:"total"`
	Active int64 `json:"active"`
}

func (a *api) status(c echo.Context, _ caller) error {
	total, active := a.cfg.Turns.Counts()
	f := a.cfg.Formation
	up := a.cfg.Now().Sub(a.cfg.Started)
	return a.reply(c, objectStatus, typeStatus, &statusDocument{
		Formation: formationInfo{ID: f.ID, Name: f.Name, Description: f.Description, Version: a.cfg.Version},
		Agents:    countActive{Count: len(f.Agents), Active: len(f.Agents)}, MCPServers: a.countServers(),
		Stats: statusStats{
			Running:  runningStats{Seconds: int64(up.Seconds()), Since: jsonTime(a.cfg.Started)},
			Memory:   measureMemory(),
			Requests: requestStats{Total: total, Active: active}, BufferSize: f.Memory.Buffer.Size,
			CPUPercent: cpuPercent(up),
		},
	})
}

// countServers counts the tool servers; those are active that are connected to.
func (a *api) countServers() (n countActive) {
	for _, s := range a.toolServers() {
		n.Count++
		if s.Status == serverConnected {
			n.Active++
		}
	}
	return n
}

// measureMemory reads the runtime's own counters, which unlike ReadMemStats
// stops nothing.
func measureMemory() memoryStats {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return memoryStats{
		WorkingMB: megabytes(samples[0].Value.Uint64()),
		UsageMB:   megabytes(samples[1].Value.Uint64() - samples[2].Value.Uint64()),
	}
}

func megabytes(n uint64) float64 { return math.Round(float64(n)/(1<<20)*100) / 100 }

func cpuPercent(up time.Duration) float64 {
	var u syscall.Rusage
	if up <= 0 || syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	used := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return math.Round(float64(used)/float64(up)*1000) / 10
}
