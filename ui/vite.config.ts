import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** KaTeX names each font in three formats; every WebKit and Chromium reads the first. */
const onlyWoff2: Plugin = {
  name: "only-woff2",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("katex") || !id.endsWith(".css")) return null;
    return code.replace(/,url\([^)]+\.(?:woff|ttf)\) ?format\("[a-z]+"\)/g, "");
  },
};

export default defineConfig(({ mode }) => ({
  plugins: [onlyWoff2, svelte()],
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
    testTimeout: 60_000,
  },
}));
