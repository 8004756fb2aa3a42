module github.com/sluice-im/sluice/examples

go 1.26.0

replace github.com/sluice-im/sluice => ../

require (
	github.com/google/uuid v1.6.0
	github.com/gorilla/websocket v1.5.3
	google.golang.org/protobuf v1.36.12
)
