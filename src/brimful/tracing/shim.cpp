// Lets a build of PyTorch accept CUDA-typed fake tensors where there is no GPU and perhaps no CUDA at all.
//
// Autograd, .to("cuda") and autocast ask two things of libtorch that only a CUDA build with a driver can answer:
// a device guard (which device and stream is current, record and wait for events) and the CUDA hooks (is there
// a device, how many). Both are answered here for one device on which nothing ever has to be waited for.
// No memory is taken and no kernel runs: tensors are fake, so only their shapes, types and lifetimes are real.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

c10::Device first_device() {
  return c10::Device(kCuda, 0);
}

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : first_device());
}

struct StillGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device) const override { return first_device(); }
  c10::Device getDevice() const override { return first_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return default_stream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  // Backward records and waits for events between streams: every event has already happened.
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
};

struct OneDeviceHooks final : public at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

StillGuard still_guard;
OneDeviceHooks one_device_hooks;

}  // namespace

// Called once through ctypes, so that a failure is a return value and not a crash while loading.
extern "C" int brimful_install() {
  c10::impl::registerDeviceGuard(kCuda, &still_guard);
  // torch looked up its hooks while it was imported and keeps that object, so registering ours is too late.
  // Both classes have the same interface and no state of ours is touched: point that object at our methods.
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(hooks) = *reinterpret_cast<void**>(&one_device_hooks);
  return 0;
}
