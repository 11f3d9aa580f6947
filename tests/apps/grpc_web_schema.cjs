// The service's schema, as `protoc` would write it.
const { create, createFileRegistry } = require('@bufbuild/protobuf');
const wkt = require('@bufbuild/protobuf/wkt');

const message = '.google.protobuf.StringValue';
const method = (name) => ({ name, inputType: message, outputType: message });
exports.payments = () => {
  const file = create(wkt.FileDescriptorProtoSchema, {
    name: 'payments.proto',
    package: 'shop',
    syntax: 'proto3',
    dependency: ['google/protobuf/wrappers.proto'],
    service: [{ name: 'Payments', method: [method('Charge'), method('Charges')] }],
  });
  const resolve = (name) => (name === wkt.file_google_protobuf_wrappers.proto.name ? wkt.file_google_protobuf_wrappers : undefined);
  return createFileRegistry(file, resolve).getService('shop.Payments');
};
