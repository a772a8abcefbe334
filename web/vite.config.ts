import { defineConfig } from "vitest/config";

export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    target: "es2022",
    // The Content-Security-Policy allows only files of the dashboard, so nothing may be inlined as a data: URL.
    assetsInlineLimit: 0,
  },
  server: {
    proxy: { "/api": "http://localhost:8080", "/w": "http://localhost:8080" },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"] },
});
