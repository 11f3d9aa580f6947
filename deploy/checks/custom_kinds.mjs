// Checks manifests of custom kinds: a JSON list on standard input, each with the file that it is in. The schemas come from the
// packages of package.json. They do not refuse an unknown field, so what they never read is refused here.

import { text } from "node:stream/consumers";

const PACKAGES = {
  "argoproj.io": "argo-cd",
  "cert-manager.io": "cert-manager",
  "external-secrets.io": "external-secrets",
  "gateway.networking.k8s.io": "gateway-api",
  "monitoring.coreos.com": "prometheus-operator",
};

/** The value, whose readers leave the paths of what they read. */
function recordReads(value, read, path = "") {
  if (typeof value !== "object" || value === null) return value;
  return new Proxy(value, {
    get(target, key) {
      if (!Object.hasOwn(target, key)) return target[key];
      read.add(`${path}/${key}`);
      return recordReads(target[key], read, `${path}/${key}`);
    },
  });
}

/** The paths that nobody has read, without those below. */
function* unread(value, read, path = "") {
  for (const [key, inner] of typeof value === "object" ? Object.entries(value ?? {}) : []) {
    if (read.has(`${path}/${key}`)) yield* unread(inner, read, `${path}/${key}`);
    else yield `${path}/${key}`;
  }
}

async function problems(manifest) {
  const [group, version] = manifest.apiVersion.split("/");
  const name = PACKAGES[group];
  if (!name) return [`no schema for ${manifest.apiVersion}`];
  const read = new Set();
  try {
    const kinds = await import(`@kubernetes-models/${name}/${group}/${version}/${manifest.kind}`);
    kinds[manifest.kind].prototype.validate.call(recordReads(manifest, read));
  } catch (error) {
    return [error.message];
  }
  return [...unread(manifest, read)].map((path) => `${path} is an unknown field`);
}

/** The problems, and one more if a field that no schema has would not be noticed. */
async function checked(manifest) {
  const misspelt = { ...manifest, spec: { ...manifest.spec, noField: [] } };
  const found = await problems(misspelt);
  return found.length ? problems(manifest) : ["its unknown fields cannot be found"];
}

for (const { file, manifest } of JSON.parse(await text(process.stdin))) {
  for (const problem of await checked(manifest)) {
    console.error(`${file}: ${manifest.kind} ${manifest.metadata?.name}: ${problem}`);
    process.exitCode = 1;
  }
}
