import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  // Vitest would otherwise take Svelte's server build.
  resolve: mode === "test" ? { conditions: ["browser"] } : {},
  build: { target: "safari16", chunkSizeWarningLimit: 900 },
  server: { port: 5173, strictPort: true },
  test: {
    environment: "happy-dom",
    include: ["tests/**/*.test.ts"],
    setupFiles: ["tests/setup.ts"],
    css: false,
    maxWorkers: 1,
  },
}));
