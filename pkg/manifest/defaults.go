package manifest

import "time"

// defaults returns a formation with every default of the manifest.
func defaults() Formation {
	return Formation{
		Server: Server{Host: "0.0.0.0", Port: 8271},
		InputLimits: InputLimits{
			MaxMessageLength: 100_000, MaxFileSizeBytes: 50 << 20, MaxMemoryEntrySize: 10_000,
			MaxToolOutputSize: 1 << 20, MaxBatchItems: 100,
		},
		LLM:      defaultLLM(),
		Budgets:  Budgets{WarnAt: 0.8},
		Overlord: defaultOverlord(),
		Async: Async{
			Mode: ModeAuto, Threshold: 30 * time.Second, EnableEstimation: true,
			ResultTTL: 24 * time.Hour, OnDisconnect: DisconnectContinue, WebhookRetries: 3, WebhookTimeout: 10 * time.Second,
		},
		Memory:  defaultMemory(),
		Logging: Logging{SystemLevel: "info", SystemDestination: "stdout", Conversation: ConversationLog{Enabled: true}, RedactEntities: true},
		A2A:     defaultA2A(),
		MCP: MCP{
			DefaultRetryAttempts: 3, DefaultTimeout: 30 * time.Second, MaxToolIterations: 10, MaxToolCalls: 50, MaxRepeatedErrors: 3,
			MaxTimeout: 300 * time.Second, MaxToolTimeout: 30 * time.Second, EnhanceUserPrompts: true, ConnectionTTL: 300 * time.Second,
		},
		RCE: RCE{Timeout: time.Minute},
		UserCredentials: UserCredentials{
			Mode: CredentialsRedirect, RequireHTTPS: true, TTL: time.Hour, MaxAttempts: 3, EncryptionSalt: "svc-user-credentials-salt-v1",
		},
		RBAC:      RBAC{Active: RBACAuto},
		Artifacts: Artifacts{Enabled: true, StorageKey: "local", Path: "artifacts", Encrypted: true, Retention: "last_accessed", MaxSizeMB: 50},
	}
}

func defaultLLM() LLM {
	return LLM{
		Currency: "USD",
		Settings: Settings{
			Temperature: 0.7, MaxTokens: 4096, Timeout: 30 * time.Second, MaxRetries: 3,
			Caching: LLMCaching{
				Enabled: true, MaxEntries: 10_000, Similarity: 0.98, TTL: 24 * time.Hour,
				StreamChunkStrategy: "sentences", StreamChunkLength: 1,
			},
		},
		Media: Media{
			Vision:    VisionSettings{MaxSizeMB: 5, Resize: true, MaxWidth: 1024, MaxHeight: 1024},
			Audio:     AudioSettings{MaxSizeMB: 10, Language: "auto"},
			Video:     VideoSettings{MaxSizeMB: 100, MaxDuration: 300 * time.Second},
			Documents: DocumentSettings{MaxSizeMB: 20, ChunkSize: 1000, Overlap: 100, Strategy: "adaptive", CacheTTL: time.Hour},
		},
	}
}

func defaultMemory() Memory {
	return Memory{
		Buffer:     Buffer{Size: 50, Multiplier: 10},
		Working:    WorkingMemory{FIFOInterval: 5 * time.Minute, Mode: WorkingLocal},
		Persistent: PersistentMemory{Enabled: true, UserSynopsis: UserSynopsis{Enabled: true, CacheTTL: time.Hour}, QueryTimeout: 30 * time.Second},
		Events: MemoryEvents{
			Enabled: true, MaxEventsPerUser: 100_000, GracePeriod: 30 * day,
			Decay:     Decay{Enabled: true, DefaultHalfLife: 180 * day, VolatileTTL: 24 * time.Hour},
			BatchSize: 500, LagAlertThreshold: time.Minute, ProjectionApplyEvery: 5 * time.Second,
		},
		Graph: MemoryGraph{
			Enabled: true, Realtime: true, RealtimeConfidence: 0.9, Periodic: true, PeriodicConfidence: 0.7,
			PeriodicSchedule: Cadence{Word: "hourly"},
		},
		CaptainsLog: CaptainsLog{Enabled: true, Schedule: Cadence{Word: "daily"}, IncludeInContext: 5, SessionIdle: 30 * time.Minute},
		Lessons:     Lessons{Enabled: true, ExtractDuringDigest: true, InjectTopN: 20, MaxPerAgent: 50, ConfidenceDecayPer30: 0.05, ArchiveThreshold: 0.2},
	}
}

func defaultA2A() A2A {
	return A2A{
		Enabled:   true,
		Filtering: A2AFiltering{Threshold: 50, AlwaysIncludeThreshold: 0.8, MinRelevanceScore: 0.3, CacheTTL: 30 * time.Minute},
		Outbound: A2AOutbound{
			Enabled: true, StartupPolicy: StartupLenient, RetryTimeout: 30 * time.Second, DefaultRetryAttempts: 3, DefaultTimeout: 30 * time.Second,
		},
		Inbound: A2AInbound{Enabled: true, Host: "0.0.0.0", Port: 8181, StartupPolicy: StartupLenient},
	}
}
