module github.com/agentherald/herald/client

go 1.25.5
