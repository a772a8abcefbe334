import { defineConfig } from "vitest/config";

export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    target: "es2022",
    // The served Content-Security-Policy allows files of our own only, so nothing may become a data: address.
    assetsInlineLimit: 0,
  },
  server: {
    proxy: { "/api": "http://localhost:8080", "/w": "http://localhost:8080" },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"] },
});
