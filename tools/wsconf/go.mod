module github.com/sluice-im/sluice/tools/wsconf

go 1.26
